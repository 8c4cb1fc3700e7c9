"""The processes that ``windowmill serve`` keeps warm.

``connect_server`` is the Spark Connect server, and ``warm_up`` what warms it. ``fork_server`` is a process that has imported all that a run
needs, and forks a child for each; ``keeper`` keeps it running beside the Spark Connect server. ``client`` is what the command line asks
first, ``protocol`` what client and fork server say to each other.
"""
