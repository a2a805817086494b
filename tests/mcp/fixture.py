"""A server with the tools, resources and prompts that the conformance suite of MCP asks for by name."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from mcp.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
WAV = base64.b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=")


def fixture_server() -> Server[Any]:
    """Return the server."""
    made = MCPServer("conformance", version="1.0.0", log_level="ERROR")
    _add_tools(made)
    _add_resources(made)
    _add_prompts(made)
    return made._lowlevel_server


def _text_content(text: str) -> TextContent:
    return TextContent(text=text)


def _image_content() -> ImageContent:
    return ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")


def _resource_content(uri: str, mime: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime, text=text))


def _add_tools(server: MCPServer) -> None:
    def tool(name: str, *content: Any, is_error: bool = False) -> None:
        async def answer() -> CallToolResult:
            return CallToolResult(content=list(content), is_error=is_error)

        server.add_tool(answer, name, description=f"{name} of the conformance suite")

    tool("test_simple_text", _text_content("This is a simple text response for testing."))
    tool("test_image_content", _image_content())
    audio = AudioContent(data=base64.b64encode(WAV).decode(), mime_type="audio/wav")
    tool("test_audio_content", audio)
    embedded = _resource_content(
        "test://embedded-resource", "text/plain", "This is an embedded resource content."
    )
    tool("test_embedded_resource", embedded)
    mixed = _resource_content(
        "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
    )
    tool(
        "test_multiple_content_types", _text_content("Multiple content types test:"), _image_content(), mixed
    )
    failed = _text_content("This tool intentionally returns an error for testing")
    tool("test_error_handling", failed, is_error=True)

    @server.tool()
    async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
        """Report three times."""
        for progress in (0, 50, 100):
            await ctx.report_progress(progress, 100)
            await asyncio.sleep(0.05)
        return "done"


def _add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return PNG

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _add_prompts(server: MCPServer) -> None:
    def said(*content: Any) -> list[UserMessage]:
        return [UserMessage(content=one) for one in content]

    @server.prompt(description="One of the conformance suite")
    def test_simple_prompt() -> list[UserMessage]:
        return said(_text_content("This is a simple prompt for testing."))

    @server.prompt(description="One of the conformance suite")
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
        return said(_text_content(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))

    @server.prompt(description="One of the conformance suite")
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        embedded = _resource_content(resourceUri, "text/plain", "Embedded resource content for testing.")
        return said(embedded, _text_content("Please process the embedded resource above."))

    @server.prompt(description="One of the conformance suite")
    def test_prompt_with_image() -> list[UserMessage]:
        return said(_image_content(), _text_content("Please analyze the image above."))
