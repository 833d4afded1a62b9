"""Reading a trace: its header, its rows by number in bounded memory, and whether its bytes are whole."""
