"""Fine-tune a causal language model with HF Trainer: python hf_trainer_before.py. The port is hf_trainer_after.py."""

from pathlib import Path

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

tokenizer = AutoTokenizer.from_pretrained("model")
texts = Path("texts.txt").read_text(encoding="utf-8").split("\n\n")
rows = [{"input_ids": tokenizer(text, truncation=True, max_length=512).input_ids} for text in texts]
arguments = TrainingArguments(
    "tuned",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=3,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    weight_decay=0.1,
    max_grad_norm=1.0,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
)
trainer = Trainer(
    AutoModelForCausalLM.from_pretrained("model"),
    arguments,
    train_dataset=rows[8:],
    eval_dataset=rows[:8],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model("tuned")
