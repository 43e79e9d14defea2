"""An HTTPS server for admission reviews and the like: bounded connections, answers at once,
certificates. Needs the extra `admission`.
"""
