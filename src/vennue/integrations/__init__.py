"""Bridges to learning frameworks, one file each, importing its framework only when used."""
