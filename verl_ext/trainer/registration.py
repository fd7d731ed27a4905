"""Makes our trainers and estimators known to verl. verl_ext.plugin has it imported right after verl's V1 trainer."""

from verl_ext.trainer import trainer  # noqa: F401  (registers itself by decorator)
from verl_ext.trainer.advantage import register_estimators

register_estimators()
