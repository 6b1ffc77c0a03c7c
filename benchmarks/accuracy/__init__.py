"""Does a compressed mean cost accuracy? Studies of trained networks."""
