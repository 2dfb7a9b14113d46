"""Networks of language and of recommendation as their papers describe them, in small sizes, spelled as public code
spells them."""
