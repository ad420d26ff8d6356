"""Find forbidden calls in a syntax tree: unpickling, evaluating, importing by a computed name, running a shell, extracting archives."""

import ast
from collections.abc import Iterator

UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "pandas"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn", "asyncio.create_subprocess_shell"),
    *("torch.load", "torch.hub.load", "torch.jit.load", "torch.package.PackageImporter"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
    "shutil.unpack_archive",
}
EXTRACTING = {"extract", "extractall", "extract_archive", "download_and_extract_archive"}
ARRAYS = {"numpy.load", "numpy.lib.format.read_array"}
RUNNING = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}


def found(tree: ast.AST) -> list[str]:
    """Return `LINE: what` for each forbidden call, under whatever name it was imported."""
    names = dict(imports(tree))
    problems = [(line, module) for line, module in modules(tree) if module.split(".")[0] in UNPICKLING]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            problems += [(node.lineno, problem) for problem in judged(node, full_name(node.func, names))]
        elif isinstance(node, ast.Name | ast.Attribute) and full_name(node, names) in CALLS:
            problems.append((node.lineno, full_name(node, names)))  # handed on, to be called elsewhere
    return [f"{line}: {problem}" for line, problem in sorted(set(problems))]


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Return the aliases in a file: `from os import system as run` gives run and os.system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    first, dot, rest = ast.unparse(node).partition(".")
    return names.get(first, first) + dot + rest


def judged(call: ast.Call, name: str) -> Iterator[str]:
    """Return what is forbidden in one call."""
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in BUILTINS or name.removeprefix("builtins.") in BUILTINS or name in CALLS:
        yield name
    if name.rpartition(".")[2] in EXTRACTING:
        yield name
    if name in ARRAYS and options.get("allow_pickle") != "False":
        yield f"{name} without allow_pickle=False"
    if options.get("allow_pickle", "False") != "False" or options.get("weights_only", "True") != "True":
        yield f"{name} that unpickles"
    if name.rpartition(".")[2] == "YAML" and options.get("typ") != "'safe'" and any(map(unsafe, [*call.args, *call.keywords])):
        yield f"{name} that is not safe"
    if "shell" in options or (name in RUNNING and not is_list(call)):
        yield f"{name} with a string for a shell"


def unsafe(argument: ast.expr | ast.keyword) -> bool:
    """Return the kind in the arguments of a YAML reader, unless it is a literal that only reads and writes data."""
    value = argument.value if isinstance(argument, ast.keyword) else argument
    named = not isinstance(argument, ast.keyword) or argument.arg == "typ"
    return named and not (isinstance(value, ast.Constant) and value.value in ("safe", "rt"))


def is_list(call: ast.Call) -> bool:
    """Return True for a list, or a name, which mypy knows to be a list; False for text."""
    command = call.args[0] if call.args else next((keyword.value for keyword in call.keywords if keyword.arg == "args"), None)
    return not isinstance(command, ast.Constant | ast.JoinedStr | ast.BinOp) and command is not None
