"""The first screen of a result as rows of data; terminal, HTML and Markdown are made from it."""
