"""What ``windowmill state`` shows of each kind of state."""
