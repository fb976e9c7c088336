"""Linear layers as they are, with what follows their product, for decoding on a GPU by joined layers."""

from torch import Tensor, nn
from torch.nn.functional import gelu, linear, silu

from groundup.inference.packed_linear import Activation


class PlainLinear(nn.Module):
    """A linear layer without gradients.

    Args:
        weight: [out, in], which is not copied.
        bias: [out], or None.
        activation: Of what comes out.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> None:
        super().__init__()
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._activation = activation

    def forward(self, x: Tensor, *, plus: Tensor | None = None, times: Tensor | None = None) -> Tensor:
        """[..., in] -> [..., out]; plus one tensor, or times one."""
        y = linear(x, self._weight, self._bias)
        if self._activation == "silu":
            y = silu(y)
        elif self._activation != "none":
            y = gelu(y, approximate="tanh" if self._activation == "gelu_tanh" else "none")
        if plus is not None:
            y = y + plus
        return y if times is None else y * times
