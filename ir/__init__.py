"""The intermediate representation: types, layouts, graphs, their text. Imports no other layer of mspc."""
