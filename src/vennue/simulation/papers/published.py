"""What the papers print.

Venn: Resource Management for Collaborative Learning Jobs (MLSys 2025, arXiv 2312.08298): speedups of the average JCT
over its optimized random baseline, here `random-order`. Propius (arXiv 2510.19617) says only what it gains at most.
"""

SPEEDUPS: dict[str, dict[str, float]] = {
    "even": {"fifo": 1.38, "srsf": 1.69, "venn": 1.87},
    "small": {"fifo": 1.48, "srsf": 1.68, "venn": 1.78},
    "large": {"fifo": 1.64, "srsf": 1.57, "venn": 1.72},
    "low": {"fifo": 1.55, "srsf": 1.66, "venn": 1.88},
    "high": {"fifo": 1.42, "srsf": 1.41, "venn": 1.63},
    "general": {"fifo": 1.46, "srsf": 1.78, "venn": 1.94},
    "compute": {"fifo": 1.73, "srsf": 2.08, "venn": 2.23},
    "memory": {"fifo": 1.68, "srsf": 2.05, "venn": 2.27},
    "resource": {"fifo": 1.65, "srsf": 1.90, "venn": 2.01},
}
"""By workload and policy."""

OF_CLASS: dict[str, float] = {"general": 1.5, "compute": 7.2, "memory": 5.3, "high_performance": 3.9}
"""Venn's speedups of each class of jobs in the even workload."""

ABLATION: dict[str, dict[str, float]] = {
    "low": {"matching": 1.62, "scheduling": 1.79, "both": 1.88},
    "high": {"matching": 1.42, "scheduling": 1.63, "both": 1.63},
}
"""Of Venn's parts, by workload."""

FAIR_SPEEDUPS: dict[float, float] = {0.0: 1.88, 2.0: 1.6}
"""By ε."""

FAIR_SHARES: dict[float, float] = {2.0: 0.69}
"""The share of jobs that meet their fair-share JCT, by ε."""

SHARING: dict[str, float] = {"utilisation": 1.88, "throughput": 2.76, "JCT": 1.26}
"""The most that Propius gains over static partition and client-side random selection."""
