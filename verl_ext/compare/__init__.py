"""Methods side by side: the same questions, seeds and budgets; one table, the figures, and every log kept."""
