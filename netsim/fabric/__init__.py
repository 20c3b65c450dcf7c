"""Links, paths and routes of servers and of the fabric between them."""
