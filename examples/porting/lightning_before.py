"""Train a classifier with Lightning: python lightning_before.py. The port is lightning_after.py."""

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def points() -> tuple[Tensor, Tensor]:
    at = 2 * torch.rand(121, 2, generator=torch.Generator().manual_seed(0)) - 1
    return at, (at.norm(dim=1) < 0.8).long()


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        logits = self.net(batch[0])
        self.log("val_loss", cross_entropy(logits, batch[1]), sync_dist=True)
        self.log("val_accuracy", (logits.argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=27)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


lightning.seed_everything(0)
classifier, (at, inside) = Classifier(), points()
loader = DataLoader(TensorDataset(at[:90], inside[:90]), batch_size=5, shuffle=True)
held_out = DataLoader(TensorDataset(at[90:], inside[90:]), batch_size=5)
watch = [ModelCheckpoint(monitor="val_loss", save_last=True), EarlyStopping("val_loss", patience=3)]
trainer = lightning.Trainer(
    max_epochs=3,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    log_every_n_steps=1,
    callbacks=[*watch, LearningRateMonitor()],
)
trainer.fit(classifier, loader, held_out)
