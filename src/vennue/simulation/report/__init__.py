"""The report of an experiment, as one HTML page with plots that a person would put into a paper."""

from vennue.simulation.report.page import notices, render

__all__ = ["notices", "render"]
