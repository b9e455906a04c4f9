"""What form a request asks of its answer, as a grammar: `response_format`, `tools` and `tool_choice`.

Knows the fields and the grammar of tool calls. Does not know tokens or how a grammar is held
(`workers.intake.grammar`).
"""

from collections.abc import Sequence
from json import dumps as json_text
from typing import Any

from topics.errors import RequestError
from topics.messages import ChatCompletionRequest, GenerationRequest
from topics.structured import FunctionChoice, FunctionTool, JsonSchemaFormat
from workers.intake.grammar import Grammar, GrammarCompiler, GrammarError, json_options
from workers.intake.tool_calls import CALL_BEGIN, CALL_END, offered_tools

__all__ = ["answer_grammar"]


def answer_grammar(request: GenerationRequest, compiler: GrammarCompiler) -> Grammar | None:
    """A fresh one for each answer; None: it may be any text. Raises `RequestError` for a schema that can't be held."""
    if not isinstance(request, ChatCompletionRequest):
        return None
    tools, form = offered_tools(request), request.response_format
    if tools:
        return _calls(request, tools, compiler)
    if form is None or form.type == "text":
        return None
    if not isinstance(form, JsonSchemaFormat):
        return _of_schema({"type": "object"}, "response_format", compiler)
    schema = form.json_schema.schema_
    return _of_schema({} if schema is None else schema, "response_format.json_schema.schema", compiler)


def _of_schema(schema: dict[str, Any], field: str, compiler: GrammarCompiler) -> Grammar:
    try:
        return compiler.json(schema)
    except GrammarError as error:
        raise _refusal(field, error) from error


def _refusal(field: str, error: GrammarError) -> RequestError:
    return RequestError.invalid_request(
        field, f"{field} can't be held: {error}. Leave out or reword that part of the schema.", "invalid_schema"
    )


def _calls(request: ChatCompletionRequest, tools: Sequence[FunctionTool], compiler: GrammarCompiler) -> Grammar:
    choice = request.tool_choice
    if isinstance(choice, FunctionChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    # A named function is called once; others as often as the model likes, unless that is forbidden.
    once = isinstance(choice, FunctionChoice) or request.parallel_tool_calls is False
    grammar = _call_grammar(tools, free=choice in (None, "auto"), once=once)
    try:
        return compiler.lark(grammar)
    except GrammarError as error:
        for place, tool in enumerate(tools):
            _of_schema(_parameters(tool), f"tools.{place}.function.parameters", compiler)
        raise _refusal("tools", error) from error


def _call_grammar(tools: Sequence[FunctionTool], *, free: bool, once: bool) -> str:
    """In Lark's notation. `free`: any text is an answer too, and may stand before the first call."""
    more = "" if once else f' ("\\n{CALL_BEGIN}" call)*'
    alternatives = " | ".join(f"call_{place}" for place in range(len(tools)))
    lines = ["%llguidance {}"]
    if free:
        lines += [
            f"start: said | opened call{more}",
            "said: TEXT",
            f'opened[lazy]: TEXT "{CALL_BEGIN}"',
            r"TEXT: /(.|\n)*/",
        ]
    else:
        lines.append(f'start: "{CALL_BEGIN}" call{more}')
    lines.append(f'call: "\\n" ({alternatives}) "\\n{CALL_END}"')
    for place, tool in enumerate(tools):
        head = json_text(f'{{"name": "{tool.function.name}", "arguments": ')
        # Each schema is a root of its own: its references begin at "#".
        lines.append(f'call_{place}: {head} %json {json_text(_parameters(tool))} "}}"')
    return "\n".join(lines) + "\n"


def _parameters(tool: FunctionTool) -> dict[str, Any]:
    schema = tool.function.parameters
    if schema is None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **schema, "x-guidance": json_options()}
