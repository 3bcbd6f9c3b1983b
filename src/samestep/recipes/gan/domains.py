"""What kinds of texts there are: which columns a file has, how a prompt is made of them, what a person wrote.

    register_domain(Domain("poems", prompt_fields=("subject",), human_field="poem", template="Write about {subject}."))

A file's domain is found by its columns. A recipe file of your own may register more when it is imported.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter

from samestep import UserError


@dataclass(frozen=True)
class Domain:
    """One kind of text."""

    name: str
    prompt_fields: tuple[str, ...]
    """The columns that the prompt is made of."""
    human_field: str
    """The column of the text that a person wrote."""
    template: str
    """The prompt, with the prompt's columns in braces."""
    group_field: str | None = None
    """The column by which results are also shown; None: there is one group."""

    def __post_init__(self) -> None:
        """Refuse a template that names other columns."""
        for field in (name for name in self.prompt_fields if not name.isidentifier()):
            raise UserError(f"Rename the column {field!r} of domain {self.name!r}; a template can only name words.")
        if self.human_field in self.prompt_fields:
            raise UserError(f"Leave {self.human_field!r} out of the prompt of domain {self.name!r}; it is the answer.")
        try:
            parts = [part for part in Formatter().parse(self.template) if part[1] is not None]
            used = {f"{field}{'!' + way if way else ''}{':' + spec if spec else ''}" for _, field, spec, way in parts}
        except ValueError as problem:
            raise UserError(f"Fix the template of domain {self.name!r}: {problem}.") from None
        if used != set(self.prompt_fields):
            raise UserError(
                f"Name exactly the prompt's columns in the template of domain {self.name!r}: it has "
                f"{_listed(sorted(used))}, and the columns are {_listed(self.prompt_fields)}."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a file of this domain must have."""
        named = (*self.prompt_fields, self.human_field, *([self.group_field] if self.group_field else []))
        return tuple(dict.fromkeys(named))

    def prompt(self, row: Mapping[str, str]) -> str:
        """The prompt of a row."""
        return self.template.format(**{field: row[field] for field in self.prompt_fields})

    def group(self, row: Mapping[str, str]) -> str:
        """The group of a row."""
        return row[self.group_field] if self.group_field else self.name


STORIES = Domain(
    "stories",
    prompt_fields=("title", "genre"),
    human_field="human_story",
    template="Write a short story.\nTitle: {title}\nGenre: {genre}\n\nStory:\n",
    group_field="genre",
)
PROOFS = Domain(
    "proofs",
    prompt_fields=("problem",),
    human_field="human_solution",
    template="Prove the following, step by step.\n\nProblem:\n{problem}\n\nProof:\n",
    group_field="source",
)
PYDOC = Domain(
    "pydoc",
    prompt_fields=("title",),
    human_field="paragraph",
    template="Write a paragraph of Python's reference on {title}.\n\n",
)
"""The text that comes with Python; it is used where no file is named."""
DOMAINS = {domain.name: domain for domain in (STORIES, PROOFS, PYDOC)}
"""Every known domain, by name."""


def register_domain(domain: Domain) -> Domain:
    """Make a domain known; one of another definition under the same name is refused."""
    known = DOMAINS.setdefault(domain.name, domain)
    if known != domain:
        raise UserError(f"Name your domain differently; there is another one called {domain.name!r}.")
    return domain


def find_domain(columns: Iterable[str], file: str, name: str | None = None) -> Domain:
    """The domain called `name`, or the only one whose columns a file has."""
    found = set(columns)
    if name is not None:
        if name not in DOMAINS:
            raise UserError(f"Set data.domain to one of {_listed(DOMAINS)}, or to null; it is {name!r}.")
        if missing := [column for column in DOMAINS[name].columns if column not in found]:
            raise UserError(
                f"Give {file} the columns of domain {name!r}; it lacks {_listed(missing)}, and has "
                f"{_listed(sorted(found))}."
            )
        return DOMAINS[name]
    fitting = [domain for domain in DOMAINS.values() if found.issuperset(domain.columns)]
    if not fitting:
        known = "; ".join(f"{domain.name}: {', '.join(domain.columns)}" for domain in DOMAINS.values())
        raise UserError(f"Give {file} the columns of a domain ({known}); it has {_listed(sorted(found))}.")
    if len(fitting) > 1:
        raise UserError(f"Set data.domain; {file} has the columns of {_listed(domain.name for domain in fitting)}.")
    return fitting[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
