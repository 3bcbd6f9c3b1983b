import sys, time, shutil, hashlib, os
from pathlib import Path
import torch
from samestep.world.world import World
from samestep.checkpoint.store import Store
from samestep.checkpoint import tensors as T
class Box:
    def __init__(s,d): s.d=d
    def state_dict(s): return s.d
    def load_state_dict(s,x): s.d=x
def main(folder, report):
    world = World.join(device=os.environ.get("DEV","cpu"), backend="gloo") if "RANK" in os.environ else World.single()
    n=int(os.environ.get("N","25")); state={"m":Box({f"w{i}":torch.randn(1024,1024,device=os.environ.get("DEV","cpu")) for i in range(n)})}  # 100 MiB
    times={"hash":0.0}
    real=hashlib.sha256
    class H:
        def __init__(s): s.h=real()
        def update(s,d):
            t=time.perf_counter(); s.h.update(d); times["hash"]+=time.perf_counter()-t
        def hexdigest(s): return s.h.hexdigest()
    class FakeHash: sha256=H
    T.hashlib=FakeHash
    real_fsync=os.fsync; times["fsync"]=0.0
    def fs(fd):
        t=time.perf_counter(); real_fsync(fd); times["fsync"]+=time.perf_counter()-t
    os.fsync=fs
    st=Store(Path(folder), world)
    out=[]
    for step in range(1,6):
        times["hash"]=times["fsync"]=0.0; world.barrier()
        t=time.perf_counter(); s=st.stage(step,state,{}); t1=time.perf_counter(); f=st.write(s); t2=time.perf_counter(); st.commit(s,f); t3=time.perf_counter()
        world.barrier()
        ck=None; t4=time.perf_counter(); ck=st.newest(); t5=time.perf_counter(); st.load(ck,state); t6=time.perf_counter()
        out.append(dict(stage=t1-t,write=t2-t1,commit=t3-t2,hash=times["hash"],fsync=times["fsync"],verify=t5-t4,load=t6-t5))
    if world.is_main:
        best={k:sorted(o[k] for o in out)[2] for k in out[0]}
        Path(report).write_text(f"ranks {world.size}: "+"  ".join(f"{k} {v:.3f}s" for k,v in best.items())+"\n")
    world.leave()
if __name__=="__main__":
    pass
    import bench_ckpt
    from samestep.launch.local import start
    shutil.rmtree("/tmp/bk",ignore_errors=True)
    torch.set_num_threads(1)
    bench_ckpt.main("/tmp/bk/one","/tmp/bk1.txt"); print(open("/tmp/bk1.txt").read())
    w=start(bench_ckpt.main,2,"/tmp/bk/two","/tmp/bk2.txt",logs=Path("/tmp/bk/logs")); print(w.wait(120), w.output(0)[-500:]); print(open("/tmp/bk2.txt").read())
    shutil.rmtree("/tmp/bk",ignore_errors=True)
