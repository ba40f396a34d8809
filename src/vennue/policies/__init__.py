"""Scheduling policies: each turns the state of the pool into a plan, and each is one small file.

A policy runs on job-side events, never on a device's check-in. It is pure like the core, which is all it imports.
Third parties add theirs through the entry-point group ``vennue.policies``.
"""
