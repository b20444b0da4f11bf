"""Synonyms: what other frameworks and everyday language call the contract's options and values."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import JsonValue

Document = Mapping[str, JsonValue]
Value = JsonValue
Keys = tuple[str, ...]


@dataclass(frozen=True)
class Synonym:
    """An option under another name."""

    path: str
    convert: Callable[[Value, Document], Value] = lambda value, _: value
    """The option's value for the other one's; what it raises means that there is none."""
    why: str = ""


def normal(name: str) -> str:
    """Return a name as options are written: `maxEpochs`, `max-epochs` → `max_epochs`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", snake.lower()).strip("_")


def written(document: Document, path: str) -> Value:
    """Return an option's value, also where it stands under another name; None if it is not set."""
    found, name = None, path.rpartition(".")[2]
    for keys, value in _leaves(document):
        if ".".join(keys) == path:
            return value
        if keys[:2] == ("model", "options"):
            continue
        synonym = find_synonym(".".join(keys)) or find_synonym(keys[-1])
        if synonym is not None and synonym.path == path:
            found = synonym.convert(value, document)
        elif normal(keys[-1]) == name and len(keys) <= len(("section", name)):
            found = value
    return found


def _leaves(table: Document, above: Keys = ()) -> Iterator[tuple[Keys, Value]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _number(value: Value) -> float:
    return float(str(value))


def _share(part: Value, whole: Value) -> Value:
    """Return a part's share; None where it is larger than the whole."""
    found = round(_number(part) / _number(whole), 6)
    return found if found <= 1.0 else None


def _micro_batch(parts: Value, document: Document) -> Value:
    rows = _number(written(document, "training.global_batch_size") or 1024)
    processes = _number(written(document, "resources.num_processes") or 2)
    return max(int(rows // (_number(parts) * processes)), 1)


def _warmup_share(steps: Value, document: Document) -> Value:
    whole = written(document, "training.steps")
    if whole is None and any(normal(keys[-1]) in EPOCHS for keys, _ in _leaves(document)):
        return None  # the epochs' number of steps is not known here
    return _share(steps, whole or 2000)


def _warmup(value: Value, document: Document) -> Value:
    return _warmup_share(value, document) if _number(value) > 1 else value


def _final_share(rate: Value, document: Document) -> Value:
    whole = written(document, f"{_OPTIMIZER}.learning_rate") or 3e-4
    return _share(rate, whole)


def _chosen(key: str, **others: Value) -> Callable[[Value, Document], Value]:
    """Return how a table is chosen by a word, such as an optimizer by its name."""

    def convert(value: Value, document: Document) -> Value:
        if not isinstance(value, dict):
            return {key: WORDS.get(plain(str(value)), str(value).lower()), **others}
        table = dict[str, Value]()
        for name, item in value.items():
            synonym = find_synonym(name) or Synonym(name)
            table[synonym.path.rpartition(".")[2]] = synonym.convert(item, document)
        return table

    return convert


def _fixed(value: Value) -> Callable[[Value, Document], Value]:
    """Return how a switch that is on becomes a fixed value; one that is off has none."""

    def convert(given: Value, _: Document) -> Value:
        if not _is_on(given):
            raise ValueError(given)
        return value

    return convert


def _if_on(resource: str) -> Callable[[Value, Document], Value]:
    """Return how a number of accelerators becomes the resource to request; none for 0."""
    return lambda value, _: resource if _is_on(value) else ""


def _is_on(value: Value) -> bool:
    return plain(str(value)) not in ("false", "no", "off", "0", "none")


def plain(word: str) -> str:
    """Return a word's letters and digits in lower case: `AdamW`, `adam-w` → `adamw`."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


# Word, as `plain` returns it → the contract's.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("bfloat16", "bf16mixed", "bf16true"), "bf16"),
        **dict.fromkeys(("float16", "half", "16", "16mixed", "16true", "mixed", "amp"), "fp16"),
        **dict.fromkeys(("float32", "single", "full", "32", "32true", "float"), "fp32"),
        **dict.fromkeys(("deepspeed", "fullysharded", "zero", "fsdp2", "fullshard"), "fsdp"),
        **dict.fromkeys(("dp", "dataparallel", "distributeddataparallel", "mirrored"), "ddp"),
        **dict.fromkeys(("adamwtorch", "adamwtorchfused", "adamwhf", "adamwfused"), "adamw"),
        **dict.fromkeys(("adamwbnb8bit", "pagedadamw8bit", "adam8bit", "8bitadam"), "adamw8bit"),
        **dict.fromkeys(("momentum", "gd", "stochasticgradientdescent"), "sgd"),
        **dict.fromkeys(("cosineannealing", "cosineannealinglr", "cosinedecay"), "cosine"),
        **dict.fromkeys(("cosinewithwarmup", "cosineschedulewithwarmup"), "cosine"),
        **dict.fromkeys(("constantwithwarmup", "none", "fixed"), "constant"),
        **dict.fromkeys(("steplr", "multisteplr", "multistep", "stepwise"), "step"),
        **dict.fromkeys(("linearlr", "linearwarmup", "lineardecay", "polynomial"), "linear"),
        **dict.fromkeys(("onecyclelr", "onecycle", "1cycle"), "one_cycle"),
        **dict.fromkeys(("warmupstabledecay",), "wsd"),
        **dict.fromkeys(("temporal", "chronological", "date"), "time"),
        **dict.fromkeys(("random", "shuffle", "shuffled"), "hash"),
        **dict.fromkeys(("grouped", "groups"), "group"),
        **dict.fromkeys(("sup", "better", "superiority"), "superior"),
        **dict.fromkeys(("noninferiority", "notworse"), "non_inferior"),
        **dict.fromkeys(("error", "critical", "block", "strict"), "fail"),
        **dict.fromkeys(("warning",), "warn"),
        **dict.fromkeys(("ignore", "skip", "disabled", "disable"), "off"),
        **dict.fromkeys(("regression", "continuous", "numeric", "real"), "number"),
        **dict.fromkeys(("classification", "categorical", "category", "class"), "classes"),
    }
)

_OPTIMIZER, _SCHEDULE, _CLIPPING = "training.optimizer", "training.schedule", "training.clipping"
_NAMES: dict[str, str] = {
    "training.steps": "max_steps num_steps n_steps total_steps train_steps num_training_steps "
    "iterations iters num_iterations max_iterations max_iter n_iter max_iters updates num_updates",
    "training.global_batch_size": "batch_size train_batch_size batchsize bs batch minibatch_size "
    "mini_batch_size total_batch_size effective_batch_size",
    "training.micro_batch_size": "per_device_train_batch_size per_gpu_train_batch_size "
    "device_batch_size micro_batch per_device_batch_size train_micro_batch_size_per_gpu "
    "local_batch_size",
    f"{_OPTIMIZER}.learning_rate": "lr learning_rate_init base_lr max_lr eta eta0 step_size "
    "initial_lr peak_lr",
    f"{_OPTIMIZER}.weight_decay": "wd l2 decay adam_weight_decay",
    f"{_OPTIMIZER}.betas": "adam_betas",
    f"{_SCHEDULE}.warmup_fraction": "warmup_ratio lr_warmup_ratio pct_start",
    f"{_SCHEDULE}.milestones": "training_schedule_step_size",
    f"{_CLIPPING}.max_norm": "gradient_clip_val max_grad_norm clip_grad_norm grad_clip clipnorm "
    "gradient_clipping clip_norm clip_grad grad_norm_clip gradient_clip global_clipnorm",
    "training.precision": "mixed_precision dtype torch_dtype amp_dtype",
    "training.allow_tf32": "tf32",
    "training.seed": "random_state random_seed seed_everything manual_seed",
    "training.compile": "torch_compile jit jit_compile compile_model",
    "training.strategy": "distributed_strategy distribution distribute_strategy",
    "training.loading.workers": "num_workers dataloader_num_workers n_workers num_threads n_jobs",
    "training.loading.pin_memory": "dataloader_pin_memory pin",
    "training.loading.prefetch_batches": "prefetch_factor prefetch dataloader_prefetch_factor",
    "training.evaluate_every_steps": "eval_steps val_check_interval eval_every evaluation_steps "
    "validate_every eval_interval eval_every_n_steps validation_steps val_interval eval_freq",
    "training.log_every_steps": "logging_steps log_every_n_steps log_interval log_every log_freq",
    "training.checkpoints.keep_every_steps": "save_steps save_every save_interval every_n_steps",
    "training.checkpoints.keep_best": "save_total_limit save_top_k keep_checkpoints max_to_keep",
    "training.parallelism.tensor": "tensor_parallel tensor_parallel_size tp tp_size",
    "training.parallelism.pipeline": "pipeline_parallel pipeline_parallel_size pp pp_size",
    "resources.cluster.budgets.running_hours": "timeout time_limit max_runtime walltime",
    "training.averaging.decay": "ema_decay ema_momentum",
    # A name that means something else outside its table is written behind the table's.
    "training.adapter.rank": "lora_r lora_rank training_adapter_r training_adapter_dim",
    "training.adapter.alpha": "lora_alpha",
    "training.adapter.dropout": "lora_dropout",
    "training.adapter.targets": "target_modules lora_target_modules",
    "training.adapter.whole": "modules_to_save",
    "training.distillation.teachers": "teacher teacher_model",
    "training.distillation.weight": "training_distillation_alpha training_distillation_lambda "
    "distillation_weight kd_weight distill_weight",
    "training.distillation.temperature": "training_distillation_t kd_temperature "
    "distillation_temperature",
    "split.validation_fraction": "validation_split val_split val_size val_fraction "
    "validation_size validation_share val_ratio valid_size dev_size val valid validation dev",
    "split.test_fraction": "test_size test_split test_ratio test_share holdout test",
    "split.method": "split_method split_by strategy_of_split",
    "data.label": "target target_column label_column label_col y labels target_col outcome "
    "response label_name dependent_variable",
    "data.uri": "path data_path data_dir train_path dataset dataset_path url folder dir file "
    "source location root train_file train_data files data_files",
    "data.ids": "id id_column id_col key keys primary_key row_id index index_col",
    "data.time": "timestamp time_column time_col date datetime date_column date_col ts "
    "timestamp_column event_time",
    "data.group": "group_id groups group_column group_col group_by groupby entity user",
    "data.meta": "drop drop_columns ignore exclude ignored metadata extra_columns",
    "data.features": "feature_columns inputs x columns feature_names input_columns predictors",
    "data.text": "text_column text_columns text_features",
    "model.task": "class cls module class_path entry_point implementation",
    "model.name": "model_name registered_model_name experiment_name",
    "resources.num_processes": "devices gpus n_gpus num_gpus world_size nproc_per_node num_gpu "
    "n_gpu nproc num_devices processes",
    "resources.cluster.memory_gib_per_process": "memory memory_gb memory_gib ram mem",
    "resources.cluster.cpus_per_process": "cpu cpus cores num_cpus",
    f"{_CLIPPING}.method": "gradient_clip_algorithm",
    "resources.cluster.machines": "num_nodes nnodes nodes num_machines",
    "selection.metric": "monitor metric_for_best_model eval_metric best_metric",
    "gate.min_improvement": "min_delta minimum_improvement improvement tolerance threshold",
    "expectations.leakage_allow": "allow_leakage leakage_allowed leakage_whitelist "
    "leakage_allowlist allow_leaks allow_leak",
    "triggers.max_age_days": "max_age retrain_every_days",
    "triggers.new_rows": "min_new_rows retrain_after_rows",
}

_SYNONYMS: dict[str, Synonym] = {
    name: Synonym(path) for path, names in _NAMES.items() for name in names.split()
}
_SYNONYMS |= dict.fromkeys(
    ("optim", "optimizer_name", "optimizer_type", "opt", "optimiser", "solver"),
    Synonym(_OPTIMIZER, _chosen("name")),
)
_SYNONYMS |= dict.fromkeys(
    ("lr_scheduler", "lr_scheduler_type", "scheduler", "lr_schedule", "learning_rate_schedule"),
    Synonym(_SCHEDULE, _chosen("shape")),
)
_SYNONYMS |= dict.fromkeys(
    ("warmup_steps", "num_warmup_steps", "lr_warmup_steps"),
    Synonym(f"{_SCHEDULE}.warmup_fraction", _warmup_share, "a share of training.steps"),
)
_SYNONYMS |= dict.fromkeys(
    ("warmup", "warm_up"),  # in steps, unless it can be a share
    Synonym(f"{_SCHEDULE}.warmup_fraction", _warmup, "a share of training.steps"),
)
_SYNONYMS |= dict.fromkeys(
    ("min_lr", "eta_min", "lr_min", "end_lr", "final_lr"),
    Synonym(f"{_SCHEDULE}.final_fraction", _final_share, "a share of the learning rate"),
)
_SYNONYMS |= dict.fromkeys(
    ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "accumulation_steps"),
    Synonym(
        "training.micro_batch_size",
        _micro_batch,
        "global_batch_size / (accumulated passes x processes)",
    ),
)
_SYNONYMS |= dict.fromkeys(
    ("devices", "gpus", "gpu_ids", "device_ids", "visible_devices"),
    Synonym(
        "resources.num_processes",
        lambda value, _: len(value) if isinstance(value, list) else value,
    ),
)
_SYNONYMS |= {
    f"resources_cluster_{name}": Synonym(
        "resources.cluster.accelerator",
        _if_on(resource),
        "one per process: resources.num_processes is their number",
    )
    for resource, names in {
        "nvidia.com/gpu": "nvidia_com_gpu gpu gpus_per_process gpu_per_process use_gpu",
        "amd.com/gpu": "amd_com_gpu",
    }.items()
    for name in names.split()
}
_SYNONYMS |= dict.fromkeys(
    ("clipvalue", "clip_value", "clip_grad_value"),
    Synonym(_CLIPPING, lambda value, _: {"method": "value", "max_value": value}),
)
_SYNONYMS |= dict.fromkeys(
    ("beta1", "adam_beta1", "beta_1"),
    Synonym(f"{_OPTIMIZER}.betas", lambda value, _: [value, 0.999]),
)
_SYNONYMS |= dict.fromkeys(
    ("beta2", "adam_beta2", "beta_2"),
    Synonym(f"{_OPTIMIZER}.betas", lambda value, _: [0.9, value]),
)
_SYNONYMS |= dict.fromkeys(
    ("gradient_checkpointing", "activation_checkpointing"),
    Synonym("training.memory.activation_checkpointing", _fixed("full")),
)
_SYNONYMS |= dict.fromkeys(
    ("sync_batchnorm", "sync_bn", "sync_batch_norm"),
    Synonym("training.normalization.batch_norm", _fixed("sync")),
)
_SYNONYMS |= dict.fromkeys(("ema", "use_ema"), Synonym("training.averaging", _fixed({})))
_SYNONYMS |= dict.fromkeys(
    ("fp16", "amp", "use_amp", "half"), Synonym("training.precision", _fixed("fp16"))
)
for bits in (4, 8):
    _SYNONYMS |= dict.fromkeys(
        (f"load_in_{bits}bit", f"quantize_{bits}bit"),
        Synonym("training.adapter.base_bits", _fixed(bits)),
    )
_SYNONYMS["bf16"] = Synonym("training.precision", _fixed("bf16"))
_SYNONYMS |= dict.fromkeys(
    ("alpha", "significance", "significance_level", "p_value"),
    Synonym("gate.confidence", lambda value, _: round(1.0 - _number(value), 6), "1 - alpha"),
)

LIMITS: Mapping[str, str] = MappingProxyType(
    {"minimum": "min", "maximum": "max", "regex": "matches", "pattern": "matches"}
    | dict.fromkeys(("values", "enum", "isin", "choices", "categories"), "allowed")
)
"""Names of a column's limits in `expectations.columns`."""
SECTIONS: Mapping[str, str] = MappingProxyType(
    {"dataset": "data", "train": "training", "trainer": "training", "tests": "gate"}
    | {"promotion": "gate", "checks": "skeleton", "sanity": "skeleton"}
    | dict.fromkeys(("hyperparameters", "hyperparams", "hparams", "parameters"), "training")
    | {"cluster": "resources.cluster", "options": "model.options"}
    | dict.fromkeys(("monitoring", "monitor", "drift", "retraining"), "triggers")
    | dict.fromkeys(("lora", "peft", "lora_config", "adapters"), "training.adapter")
    | dict.fromkeys(("distill", "kd", "knowledge_distillation"), "training.distillation")
)
"""Sections under other names."""
EPOCHS = frozenset(
    ("epochs", "max_epochs", "num_epochs", "num_train_epochs", "n_epochs", "nb_epoch", "epoch")
)
"""Names of a number of epochs, from which `training.steps` is computed."""
_OF_TASKS = (
    "dropout hidden hidden_size hidden_sizes hidden_dim layers num_layers n_layers width depth "
    "embedding_dim embed_dim d_model num_heads n_heads heads vocab_size max_length num_classes "
    "n_classes activation channels kernel_size image_size categorical categorical_features "
    "cat_features"
)
TASK_OPTIONS = frozenset(_OF_TASKS.split())
"""Names of options that only a task can have."""

_NOT_NEEDED = {
    "the best checkpoint is selected after all steps, whichever step it is of": "patience "
    "early_stopping early_stopping_patience early_stop load_best_model_at_end "
    "early_stopping_rounds restore_best_weights",
    "a GPU is used where there is one": "device use_cuda cuda no_cuda accelerator use_cpu "
    "no_gpu gpu use_gpu mps use_mps_device",
    "the training split is what validation and test leave": "train train_fraction train_size "
    "train_split train_ratio train_share",
    "the task's `metrics` states each metric's direction": "greater_is_better mode direction "
    "higher_is_better lower_is_better is_higher_better bigger_is_better "
    "metric_direction maximize minimize",
    "the task's `losses` is the loss": "loss loss_fn criterion loss_function objective",
    "the task's `build_model` is the model": "architecture model_type backbone network pretrained",
    "training rows are shuffled, by training.seed": "shuffle shuffle_train shuffle_data",
    "every row keeps its split; the gate's confidence interval shows the variance of the test "
    "rows": "k_folds k_fold n_splits n_folds folds num_folds cv kfold cross_validation",
    "a split by hash has nearly the same share of each label in every split": "stratify "
    "stratified stratify_by stratify_col stratify_column",
    "every update has a whole global batch": "drop_last dataloader_drop_last",
    "`--home FOLDER` sets where runs are kept": "output_dir log_dir checkpoint_dir save_dir "
    "default_root_dir logging_dir ckpt_dir out_dir checkpoint_path dirpath",
    "`perennial run` continues an unfinished run by itself": "resume resume_from_checkpoint "
    "ckpt_path restore resume_training",
    "every run is recorded in MLflow": "logger report_to tracking verbose callbacks "
    "progress_bar enable_progress_bar wandb tensorboard disable_tqdm",
    "a profile deploys schedules: `perennial schedule --help`": "cron interval_seconds schedule",
    "the task's `training_losses` has it": "label_smoothing class_weight class_weights "
    "sample_weight pos_weight focal_gamma mixup",
    "training.steps alone sets the length": "steps_per_epoch initial_epoch limit_train_batches "
    "max_time min_epochs min_steps",
    "threads load the data: training.loading.workers": "use_multiprocessing persistent_workers",
    '[skeleton.severities] switches checks off: NAME = "off"': "skip skip_checks disable waive",
    "the task's `scoring_rows` is the batch of an evaluation": "eval_batch_size "
    "per_device_eval_batch_size val_batch_size test_batch_size",
}
NOT_NEEDED: Mapping[str, str] = MappingProxyType(
    {name: why for why, names in _NOT_NEEDED.items() for name in names.split()}
)
"""Name → why the contract needs no such option."""


def find_synonym(name: str) -> Synonym | None:
    """Return the option that a name of another framework stands for, if it is known.

    In a table, the name behind the table's may stand for another one than alone.
    """
    return _SYNONYMS.get(normal(name))
