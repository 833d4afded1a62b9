"""What HTTP carries: server-sent events and tool calls as bytes and text."""
