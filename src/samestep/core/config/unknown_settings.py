"""What to say of a setting that does not exist: what other trainers call by that name, or the nearest names."""

from collections.abc import Collection, Iterable

from samestep.core.config.schema import listed
from samestep.core.errors import UserError
from samestep.core.near_names import AT_MOST, nearest, spelled

_LISTED = 20  # settings that a sentence lists at most
_PRECISION = "distributed.mixed_precision"

_OTHER_TRAINERS = {
    "learning_rate": "lr base_lr init_lr initial_lr max_lr peak_lr step_size",
    "weight_decay": "wd decay l2 l2_reg",
    "batch_size": "bs batch batchsize micro_batch_size micro_bs device_batch_size train_batch_size per_gpu_batch_size "
    "per_device_batch_size per_device_train_batch_size per_gpu_train_batch_size train_micro_batch_size_per_gpu",
    "global_batch_size": "total_batch_size effective_batch_size gbs",
    "accumulation": "grad_accum grad_acc accum accum_steps accum_iter accumulate_grad_batches grad_accum_steps "
    "gradient_accumulation gradient_accumulation_steps",
    "epochs": "epoch n_epochs num_epochs nepochs max_epochs num_train_epochs train_epochs",
    "max_steps": "steps n_steps num_steps num_train_steps max_train_steps total_steps train_steps train_iters "
    "max_iters num_iterations iterations iters",
    "warmup_steps": "warmup n_warmup num_warmup_steps warmup_iters lr_warmup_steps",
    "warmup_ratio": "warmup warmup_proportion warmup_fraction warmup_frac",
    "schedule": "scheduler lr_schedule lr_scheduler lr_scheduler_type lr_decay_style",
    "optimizer": "optim opt optimiser",
    "beta1": "adam_beta1 betas",
    "beta2": "adam_beta2 betas",
    "adam_eps": "eps epsilon adam_epsilon",
    "clip": "max_grad_norm grad_clip grad_norm gradient_clip gradient_clipping gradient_clip_val clip_grad clip_norm "
    "clip_grad_norm",
    "seed": "random_seed rng_seed manual_seed",
    "validate_every": "eval_every eval_steps eval_interval eval_freq eval_iters val_every val_check_interval val_freq",
    "early_stopping": "patience early_stopping_patience early_stop",
    "checkpoint.every_steps": "save_steps save_every save_interval save_freq save_every_n_steps checkpoint_interval "
    "checkpoint_steps checkpointing_steps checkpoint_every ckpt_interval",
    "checkpoint.every_epochs": "save_every_epoch save_every_n_epochs checkpoint_epochs",
    "checkpoint.keep_last": "save_total_limit keep_checkpoints max_checkpoints save_top_k",
    "log.every": "logging_steps log_every log_interval log_freq log_steps log_every_n_steps print_freq print_every",
    "log.wandb": "wandb use_wandb report_to with_wandb",
    "log.wandb_project": "wandb_project project project_name",
    "log.tensorboard": "tensorboard use_tensorboard tb",
    "name": "run_name exp_name experiment_name experiment run_id",
    "out": "output_dir output out_dir outdir save_dir save_path log_dir logdir checkpoint_dir ckpt_dir runs_dir "
    "default_root_dir project_dir",
    "init_from": "pretrained checkpoint_path ckpt ckpt_path load load_from load_checkpoint weights init_checkpoint",
    "continue_from": "resume_checkpoint resume_from_checkpoint resume_from",
    "num_workers": "workers n_workers num_data_workers dataloader_num_workers data_workers",
    "prefetch": "prefetch_factor dataloader_prefetch_factor",
    "compile": "torch_compile use_compile compile_model",
    "activation_checkpointing": "gradient_checkpointing grad_checkpointing grad_checkpoint use_gradient_checkpointing "
    "checkpoint_activations recompute",
    "deterministic": "full_determinism use_deterministic_algorithms",
    "attention": "attn attn_implementation flash_attn flash_attention use_flash_attention",
    "profile": "profiler use_profiler",
    "distributed.backend": "backend dist_backend ddp_backend",
    "distributed.device": "device cuda use_cuda accelerator no_cuda use_cpu cpu",
    "distributed.strategy": "strategy fsdp use_fsdp ddp use_ddp deepspeed zero zero_stage sharding",
    "distributed.timeout": "ddp_timeout dist_timeout",
    _PRECISION: "precision amp use_amp mixed_precision torch_dtype autocast",
    f"{_PRECISION}=bf16": "bf16 bfloat16",
    f"{_PRECISION}=fp16": "fp16 float16 half",
    f"{_PRECISION}=none": "fp32 float32 no_fp16 no_bf16 no_amp",
    "model_name": "model_name_or_path model_id model_path base_model pretrained_model pretrained_model_name_or_path",
    "model.name": "model_name model_name_or_path model_id model_path base_model pretrained_model "
    "pretrained_model_name_or_path",
    "data.path": "data_path data_dir data_file dataset dataset_path dataset_name dataset_dir train_file train_data "
    "train_path",
    "data.train": "data_path data_dir data_file dataset dataset_path dataset_name dataset_dir train_file train_data "
    "train_path",
    "data.validation": "val_data val_file validation_file valid_data eval_file eval_data",
    "data.limit": "max_samples max_train_samples num_samples limit_train_batches",
    "data.max_length": "max_len max_length max_seq_len max_seq_length seq_len block_size cutoff_len",
    "data.sequence_length": "max_len max_length max_seq_len max_seq_length seq_len seq_length block_size "
    "context_length cutoff_len",
    "--nproc of samestep train": "gpus num_gpus n_gpus ngpus n_gpu devices world_size nproc nproc_per_node "
    "num_processes num_procs",
    "--nodes of samestep train": "nnodes num_nodes num_machines",
    "--resume of samestep train": "resume resume_checkpoint resume_from_checkpoint resume_from",
}
"""What other trainers call a setting, or an option of the command. Not every recipe has each of these settings."""


def unknown_setting(path: str, names: Iterable[str]) -> UserError:
    """The error for a setting that does not exist; it suggests the ones that may have been meant."""
    known = dict.fromkeys(names)
    near = _elsewhere(path, known) or _called_so_by_others(path, known) or nearest(path, known)
    if near:
        return UserError(f"There is no setting {path!r}; did you mean {listed(near, 'or')}?")
    top = [name for name in known if "." not in name]
    if len(top) > _LISTED:
        return UserError(f"There is no setting {path!r}, nor one of a similar name; samestep config RECIPE lists all.")
    return UserError(f"There is no setting {path!r}; the settings are {listed(top)}.")


def _elsewhere(path: str, known: Collection[str]) -> list[str]:
    """The settings of this very name in another section."""
    last = _last_part(path)
    return [name for name in known if last and _last_part(name) == last][:AT_MOST]


def _called_so_by_others(path: str, known: Collection[str]) -> list[str]:
    """The settings that other trainers call `path`, or its last part (`optimizer.lr`, `trainer.max_epochs`)."""
    for wanted in dict.fromkeys((spelled(path), _last_part(path))):
        found = [ours for ours, theirs in _OTHER_TRAINERS.items() if wanted in theirs.split()]
        if here := [ours for ours in found if ours.startswith("--") or ours.partition("=")[0] in known]:
            return here
    return []


def _last_part(path: str) -> str:
    return spelled(path).rpartition(".")[2]
