"""What ``windowmill serve`` keeps: ``connect_server`` is the Spark Connect server, and ``warm_up`` what warms it."""
