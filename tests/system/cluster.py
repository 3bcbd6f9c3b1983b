"""A real SLURM cluster on this machine: a controller, two nodes of eight cores and four GPUs that are none, munge."""

import os
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from system.hosts import wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "qsub", "generate_pbs_nodefile")
READY = 30.0
"""Seconds in which a cluster must be up."""
KILL_WAIT = 10
"""Seconds between SIGTERM and SIGKILL, in which a run has to save."""
GPUS = 4
_NODE = f"CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:{GPUS}"


@dataclass
class Cluster:
    """Its daemons, and the environment in which the commands of SLURM speak to it."""

    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """For everything that talks to this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def state(self, job: str) -> str:
        """How a job stands, as SLURM says it."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """One field of what SLURM knows of a job."""
        words = self("scontrol", "show", "job", "--oneliner", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def start(self) -> None:
        """Bring it up, or say what its controller said."""
        self._prepare()
        munge = self.folder / "munge"
        files = [f"--{name}={munge / name[:-5]}" for name in ("key-file", "pid-file", "log-file", "seed-file")]
        self._daemon("munged", "-F", "--force", f"--socket={munge / 'sock'}", *files)
        wait_for((munge / "sock").exists, READY, "for munge")
        self._daemon("slurmctld", "-D", "-i")
        for node in ("node1", "node2"):
            self._daemon("slurmd", "-D", "-N", node)
        wait_for(lambda: self("sinfo", "-h", "-N", "-p", "main", "-o", "%N=%T").split() == _IDLE, READY, "for SLURM")

    def stop(self) -> None:
        """Take it down: jobs, then nodes and controller, munge last."""
        if len(self.daemons) > 1:
            self("scancel", "-u", "root")
        for daemon in (*self.daemons[:0:-1], *self.daemons[:1]):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()

    def __call__(self, *words: str) -> str:
        """What a command of SLURM prints."""
        try:
            done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:  # a controller that does not answer: whoever waits for something else says so
            return ""
        return done.stdout

    def _daemon(self, *words: str) -> None:
        with open(self.folder / f"{words[0]}{words[-1] if words[0] == 'slurmd' else ''}.log", "w") as log:
            self.daemons.append(
                subprocess.Popen(
                    words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _prepare(self) -> None:
        folder = self.folder
        folder.chmod(0o755)
        for name in ("state", "dev", "munge"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o600)
        for number in range(GPUS):  # a GPU must be a character device to be given out
            os.mknod(folder / "dev" / f"nvidia{number}", 0o020600, os.makedev(195, number))
        (folder / "gres.conf").write_text(
            f"NodeName=node[1-2] Name=gpu File={folder}/dev/nvidia[0-{GPUS - 1}] Flags=nvidia_gpu_env\n"
        )
        (folder / "slurm.conf").write_text(_configuration(folder))
        # What makes qsub's jobs look like those of PBS: its variables, and the list of nodes.
        (folder / "plugstack.conf").write_text("required spank_pbs.so\n")
        prolog = folder / "prolog"
        prolog.write_text('#!/bin/sh\n[ -z "$PBS_JOBID" ] || echo "export PBS_NODEFILE=$(generate_pbs_nodefile)"\n')
        prolog.chmod(0o755)


_IDLE = ["node1=idle", "node2=idle"]


def _configuration(folder: Path) -> str:
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(
        f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} {_NODE}" for number in (1, 2)
    )
    return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobRequeue=1
KillWait={KILL_WAIT}
MinJobAge=3600
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PlugStackConfig={folder}/plugstack.conf
TaskProlog={folder}/prolog
{nodes}
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=OFF
PartitionName=low Nodes=node[1-2] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=graceful Nodes=node[1-2] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=urgent Nodes=node[1-2] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
