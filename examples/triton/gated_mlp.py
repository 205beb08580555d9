"""A gated MLP through torch.compile: the kernels are those that Inductor writes, in its worker processes too.

    warplens record examples/triton/gated_mlp.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import torch


class GatedMlp(torch.nn.Module):
    """silu(x W1) * (x W2), normalised, W3."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        make = torch.nn.Linear
        self.gate, self.up, self.down = make(width, hidden), make(width, hidden), make(hidden, width)
        self.norm = torch.nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def main() -> None:
    torch.manual_seed(0)
    model = torch.compile(GatedMlp(1024, 4096).cuda().bfloat16())
    x = torch.randn(2048, 1024, device="cuda").bfloat16()
    with torch.no_grad():
        for _ in range(5):
            y = model(x)
    print(hashlib.sha256(y.cpu().view(torch.int16).numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
