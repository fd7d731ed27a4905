"""Programs that are written for OpenAI's API, or Anthropic's, as workflows. Imports neither torch nor verl.

workflow    GatewayWorkflow: a program as a workflow; what a user writes
endpoint    Endpoint: what the program is given
server      the HTTP server of a process, which finds a trajectory by its API key
session     GatewaySession: the requests of one program as calls; replays, forks
replay      what a run shares with the trajectory that it forks from
pace        when a program has asked all that it asks at once
quoting     which earlier answers a request uses
ledger      what the trajectories of a question have asked
requests    OpenAI's requests, checked; responses: OpenAI's answers, whole and streamed
anthropic   the same for Anthropic's messages
running     runs programs in threads and processes
processes   programs in a process of their own; ProgramWorkflow: such a program as a workflow, from a recipe alone
errors      errors in the form of OpenAI and Anthropic
settings    the section `mas.gateway`
"""

from verl_ext.gateway.endpoint import BlockingEndpoint, Endpoint
from verl_ext.gateway.processes import ProgramWorkflow
from verl_ext.gateway.settings import GatewaySection
from verl_ext.gateway.workflow import GatewayWorkflow

__all__ = ["BlockingEndpoint", "Endpoint", "GatewaySection", "GatewayWorkflow", "ProgramWorkflow"]
