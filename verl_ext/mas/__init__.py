"""Multi-agent systems: agents, workflows, recorded runs of them, and credit. Imports neither torch nor verl.

agent       Agent: a prompt, a parser, and an agent-specific reward
parameters  sampling parameters that an agent, or a chat, has of its own
messages    the chat messages that prompts return
prompts     the prompts of a recipe by name, or a user's own texts
workflow    Workflow: the base class of a system, which defines `agents`, `run` and `reward`
options     checks of the arguments of workflows
context     Context, the `ctx` of `run`: call agents and tools, open branches, run sub-workflows
works       what runs beside and within what: a failure is raised once what runs beside it has ended
chat        ChatRequest, Reply: chats in OpenAI's form; chat_context: `ctx.chat` and its helpers
chat_answers    what an output of a chat says; tool_texts: tool calls as text; prompt_tokens: the prompt of a call
openai_client   `ctx.openai`: a client with the interface of the package `openai`
session     Session: runs a workflow once, gives every call its identity, records or replays it
differences how a replay differs from the record; the turns of calls whose identity is what they ask
forest      Forest: all calls and trajectories of one question
types       the records of all this: Task, Call, Trajectory, Status
credit      from the reward of a trajectory to the reward of each call
llm         LLM: the interface of what answers a call; endpoint: an OpenAI-compatible server as an LLM
choices     calls whose output is one of several given texts
offsets     from ranges of characters to ranges of tokens
tool_calls  the attempts of a tool call, and what sampling costs
json_texts  JSON of programs and models, read so that every later step can take it
limits      bounds of a trajectory (calls, tokens, seconds), and of the time in which nothing happens
noise       the seed of each call; stopwatch: a clock that stops during weight updates, and what is waited for
turns       what begins at once, spread over turns of the event loop
"""

from verl_ext.mas.agent import Agent, Unparsable
from verl_ext.mas.chat import Reply
from verl_ext.mas.types import Call, CallFailed, Status, Task, ToolFailed, Trajectory
from verl_ext.mas.workflow import Workflow

__all__ = [
    "Agent",
    "Call",
    "CallFailed",
    "Reply",
    "Status",
    "Task",
    "ToolFailed",
    "Trajectory",
    "Unparsable",
    "Workflow",
]
