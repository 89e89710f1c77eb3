"""The smallest problem: out = 2 x, exactly."""

from pestle_lab import Problem, input, output

problem = Problem(
    name="double",
    doc="Twice x.",
    args=[
        input("x", "f32|bf16", "M, N", "numbers"),
        output("out", "=x", "M, N", "twice each"),
    ],
    reference=lambda inputs, _: {"out": (inputs["x"] * 2, None)},
    flops="M*N",
    suites={
        "smoke": ["M=8 N=64", "M=3 N=5 memory=strided"],
        "adversarial": [
            "M=0 N=4",
            "M=1 N=1 memory=offset",
            "M=7 N=9 memory=transposed",
            "M=4 N=33 data=special",
        ],
        "performance": ["M=256 N=1024"],
    },
)
