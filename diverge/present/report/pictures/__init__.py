"""The geometry of a report's pictures: heat maps, margins, survival; no colours and no sentences."""
