"""What job owners and devices program against: ``Job`` and ``Device``, over one small transport seam.

It speaks the wire messages of ``vennue.protocol`` and imports nothing of the server, so a device installs none of it.
"""
