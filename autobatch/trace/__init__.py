"""From Python to graphs: cells are called on handles and record nodes; bodies are traced once for each type."""
