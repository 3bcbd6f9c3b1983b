"""Images of any usual layout and type."""

import pytest
import torch

from samestep.core.errors import UserError
from samestep.train.logging.images import image_array


def test_layouts_and_types() -> None:
    chw = torch.arange(3 * 6 * 5, dtype=torch.uint8).view(3, 6, 5)
    assert (image_array("a", chw) == chw.permute(1, 2, 0).numpy()).all()
    assert (image_array("a", chw.permute(1, 2, 0)) == chw.permute(1, 2, 0).numpy()).all()
    assert image_array("a", torch.zeros(4, 5)).shape == (4, 5, 1)
    floats = torch.tensor([[0.0, 0.5, 1.0, 2.0, -1.0, float("nan")]])
    assert image_array("a", floats)[0, :, 0].tolist() == [0, 128, 255, 255, 0, 0]


@pytest.mark.parametrize("image", [torch.zeros(2, 3, 4, 5), torch.zeros(7, 8, 9), torch.zeros(3, 4, 5).long()])
def test_others_are_refused(image: torch.Tensor) -> None:
    with pytest.raises(UserError, match="the image 'a' "):
        image_array("a", image)
