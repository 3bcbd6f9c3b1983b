"""A real SLURM cluster: munge, a controller, and two nodes, each with eight cores and four fake GPUs.

All of it runs on this machine, or on hosts, the last of which has the controller.
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

from system.cleanup import MARKED
from system.hosts import Machine, Process, wait_for
from system.requirements import require, skip_or_fail

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "qsub", "generate_pbs_nodefile")
START_TIMEOUT = 120.0
"""Seconds within which the cluster must be up."""
GPUS = 4
_NODE = f"CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:{GPUS}"
_IDLE = ["node1=idle", "node2=idle"]


@dataclass
class Cluster:
    """The daemons of SLURM, and its commands."""

    folder: Path
    machines: Sequence[Machine] = field(default_factory=lambda: [Machine()] * 3)
    """The two nodes, and the login machine, which also runs the controller."""
    lost_after: int = 300
    """Seconds without an answer after which SLURM counts a node as lost."""
    kill_wait: int = 30
    """Seconds from SIGTERM to SIGKILL of a job; 30 is SLURM's default."""
    daemons: list[Process] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """The environment of every command that talks to this cluster."""
        return {**os.environ, **MARKED, "SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def login(self) -> Machine:
        """The machine on which users run commands."""
        return self.machines[-1]

    def state(self, job: str) -> str:
        """SLURM's state of a job."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """A field of `scontrol show job`; empty if SLURM does not answer."""
        fields = self("scontrol", "show", "job", "--oneliner", job).split()
        return next((text.partition("=")[2] for text in fields if text.startswith(f"{name}=")), "")

    @contextmanager
    def running(self) -> Iterator["Cluster"]:
        """Runs the cluster until the context is left; where that is not possible, tests are skipped."""
        require("SLURM", PROGRAMS, root=True)
        try:
            self._prepare()
        except PermissionError as error:  # root, but in a container that cannot make devices
            skip_or_fail("SLURM", str(error))
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
        wait_for((munge / "sock").exists, START_TIMEOUT, "for munge")
        self._daemon(self.login, "slurmctld", "-D", "-i")
        for node, machine in zip(("node1", "node2"), self.machines):
            self._daemon(machine, "slurmd", "-D", "-N", node)
        wait_for(
            lambda: self("sinfo", "-h", "-N", "-p", "main", "-o", "%N=%T").split() == _IDLE,
            START_TIMEOUT,
            self._daemon_logs,
        )

    def __call__(self, *args: str) -> str:
        """Run a command of SLURM and return what it prints."""
        command = self.login.wrap(args)
        try:
            done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:  # the controller does not answer; the caller fails with its own message
            return ""
        return done.stdout

    def daemon_log(self, job: str) -> str:
        """The lines about a job in the logs of the daemons."""
        lines = [line for path in sorted(self.folder.glob("slurm*.log")) for line in path.read_text().splitlines()]
        return "\n".join(line for line in lines if re.search(rf"JobId={job}\b|job {job}\b|StepId={job}\.", line))

    def _daemon_logs(self) -> str:
        return "for SLURM:\n" + "\n".join(path.read_text()[-1000:] for path in sorted(self.folder.glob("slurm*.log")))

    def _daemon(self, machine: Machine, *args: str) -> None:
        output = self.folder / f"{args[0]}{args[-1] if args[0] == 'slurmd' else ''}.log"
        self.daemons.append(machine.start(*args, env=self.env, output=output, folder=self.folder))

    def _prepare(self) -> None:
        folder = self.folder
        folder.chmod(0o755)
        for name in ("state", "dev", "munge"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o600)
        for number in range(GPUS):  # SLURM allocates a GPU only if it is a character device
            os.mknod(folder / "dev" / f"nvidia{number}", 0o020600, os.makedev(195, number))
        (folder / "gres.conf").write_text(
            f"NodeName=node[1-2] Name=gpu File={folder}/dev/nvidia[0-{GPUS - 1}] Flags=nvidia_gpu_env\n"
        )
        (folder / "slurm.conf").write_text(_configuration(self))
        # Makes the jobs of qsub look like those of PBS: its environment variables, and the node file.
        (folder / "plugstack.conf").write_text("required spank_pbs.so\n")
        prolog = folder / "prolog"
        prolog.write_text('#!/bin/sh\n[ -z "$PBS_JOBID" ] || echo "export PBS_NODEFILE=$(generate_pbs_nodefile)"\n')
        prolog.chmod(0o755)


def _configuration(cluster: Cluster) -> str:
    """The text of slurm.conf.

    Timeouts are long, since this machine may be busy; but a requeued job waits for `cred_expire`, so that one is short.
    Ranks find each other by their job id, so job ids start at a random number: another cluster on this machine should
    use different ones.
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
