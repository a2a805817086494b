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


def fixture() -> Server[Any]:
    """Return the server."""
    made = MCPServer("conformance", version="1.0.0", log_level="ERROR")
    _tools(made)
    _resources(made)
    _prompts(made)
    return made._lowlevel_server


def _text(text: str) -> TextContent:
    return TextContent(text=text)


def _image() -> ImageContent:
    return ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")


def _resource(uri: str, mime: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime, text=text))


def _tools(server: MCPServer) -> None:
    def tool(name: str, *content: Any, is_error: bool = False) -> None:
        async def answer() -> CallToolResult:
            return CallToolResult(content=list(content), is_error=is_error)

        server.add_tool(answer, name, description=f"{name} of the conformance suite")

    tool("test_simple_text", _text("This is a simple text response for testing."))
    tool("test_image_content", _image())
    audio = AudioContent(data=base64.b64encode(WAV).decode(), mime_type="audio/wav")
    tool("test_audio_content", audio)
    embedded = _resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    tool("test_embedded_resource", embedded)
    mixed = _resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    tool("test_multiple_content_types", _text("Multiple content types test:"), _image(), mixed)
    failed = _text("This tool intentionally returns an error for testing")
    tool("test_error_handling", failed, is_error=True)

    @server.tool()
    async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
        """Report three times."""
        for progress in (0, 50, 100):
            await ctx.report_progress(progress, 100)
            await asyncio.sleep(0.05)
        return "done"


def _resources(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return PNG

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _prompts(server: MCPServer) -> None:
    def said(*content: Any) -> list[UserMessage]:
        return [UserMessage(content=one) for one in content]

    @server.prompt(description="One of the conformance suite")
    def test_simple_prompt() -> list[UserMessage]:
        return said(_text("This is a simple prompt for testing."))

    @server.prompt(description="One of the conformance suite")
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
        return said(_text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))

    @server.prompt(description="One of the conformance suite")
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        embedded = _resource(resourceUri, "text/plain", "Embedded resource content for testing.")
        return said(embedded, _text("Please process the embedded resource above."))

    @server.prompt(description="One of the conformance suite")
    def test_prompt_with_image() -> list[UserMessage]:
        return said(_image(), _text("Please analyze the image above."))
