"""A real SLURM cluster: a controller, two nodes of eight cores and four GPUs that are none, munge.

All of it on this machine, or on hosts, of which the last one has the controller.
"""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import randrange

from system.hosts import Machine, Process, wait_for
from system.keeper import MARKED
from system.needs import do_without, require

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "qsub", "generate_pbs_nodefile")
READY = 120.0
"""Seconds in which a cluster must be up."""
GPUS = 4
_NODE = f"CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:{GPUS}"
_IDLE = ["node1=idle", "node2=idle"]


@dataclass
class Cluster:
    """Its daemons, and the environment in which the commands of SLURM speak to it."""

    folder: Path
    machines: Sequence[Machine] = field(default_factory=lambda: [Machine()] * 3)
    """Two nodes, and where the controller runs and users log in."""
    lost_after: int = 300
    """Seconds without a sign of life after which a node counts as lost."""
    kill_wait: int = 30
    """Seconds that a job has to end after it was asked to; so many on most clusters."""
    daemons: list[Process] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """For everything that talks to this cluster."""
        return {**os.environ, **MARKED, "SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def login(self) -> Machine:
        """Where users type."""
        return self.machines[-1]

    def state(self, job: str) -> str:
        """How a job stands, as SLURM says it."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """One field of what SLURM knows of a job; empty when it does not answer."""
        words = self("scontrol", "show", "job", "--oneliner", job).split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    @contextmanager
    def running(self) -> Iterator["Cluster"]:
        """Up while entered; where there can be none, tests are skipped."""
        require("SLURM", PROGRAMS, root=True)
        try:
            self._prepare()
        except PermissionError as error:  # root, but in a container that may not make devices
            do_without("SLURM", str(error))
        try:
            self._start()
            yield self
        finally:
            for daemon in self.daemons:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()

    def _start(self) -> None:
        munge = self.folder / "munge"
        files = [f"--{name}={munge / name[:-5]}" for name in ("key-file", "pid-file", "log-file", "seed-file")]
        self._daemon(Machine(), "munged", "-F", "--force", f"--socket={munge / 'sock'}", *files)
        wait_for((munge / "sock").exists, READY, "for munge")
        self._daemon(self.login, "slurmctld", "-D", "-i")
        for node, machine in zip(("node1", "node2"), self.machines):
            self._daemon(machine, "slurmd", "-D", "-N", node)
        wait_for(lambda: self("sinfo", "-h", "-N", "-p", "main", "-o", "%N=%T").split() == _IDLE, READY, self._told)

    def __call__(self, *words: str) -> str:
        """What a command of SLURM prints."""
        command = self.login.inside(words)
        try:
            done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:  # a controller that does not answer: whoever waits for something else says so
            return ""
        return done.stdout

    def told(self, job: str) -> str:
        """What the daemons said of a job."""
        lines = [line for path in sorted(self.folder.glob("slurm*.log")) for line in path.read_text().splitlines()]
        return "\n".join(line for line in lines if re.search(rf"JobId={job}\b|job {job}\b|StepId={job}\.", line))

    def _told(self) -> str:
        return "for SLURM:\n" + "\n".join(path.read_text()[-1000:] for path in sorted(self.folder.glob("slurm*.log")))

    def _daemon(self, machine: Machine, *words: str) -> None:
        output = self.folder / f"{words[0]}{words[-1] if words[0] == 'slurmd' else ''}.log"
        self.daemons.append(machine.start(*words, env=self.env, output=output, folder=self.folder))

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
        (folder / "slurm.conf").write_text(_configuration(self))
        # What makes qsub's jobs look like those of PBS: its variables, and the list of nodes.
        (folder / "plugstack.conf").write_text("required spank_pbs.so\n")
        prolog = folder / "prolog"
        prolog.write_text('#!/bin/sh\n[ -z "$PBS_JOBID" ] || echo "export PBS_NODEFILE=$(generate_pbs_nodefile)"\n')
        prolog.chmod(0o755)


def _configuration(cluster: Cluster) -> str:
    """Times within which something must answer are long, since this machine may be busy; a job that was requeued waits
    for `cred_expire`, so that one is short. Ranks find each other by the number of their job, so another cluster on
    this machine should give out other ones.
    """
    folder, login = cluster.folder, cluster.login
    nodes = "\n".join(
        f"NodeName=node{number} NodeHostname={at.name} NodeAddr={at.address} Port={_free_port()} {_NODE}"
        for number, at in enumerate(cluster.machines[:2], start=1)
    )
    return f"""ClusterName=test
SlurmctldHost={login.name}({login.address})
SlurmctldPort={_free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=8
CredType=cred/munge
FirstJobId={randrange(1, 60_000_000)}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdTimeout={cluster.lost_after}
MessageTimeout=60
BatchStartTimeout=120
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobRequeue=1
KillWait={cluster.kill_wait}
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
PartitionName=graceful Nodes=node[1-2] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=120
PartitionName=urgent Nodes=node[1-2] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
