"""Processes that start warm: a fork server has imported all that a run needs, and forks a child for each.

``client`` is what the command line asks first, ``fork_server`` the process that forks, ``keeper`` what keeps it running beside a Spark
Connect server, ``protocol`` what client and fork server say to each other. ``warm_up`` warms the Spark Connect server itself.
"""
