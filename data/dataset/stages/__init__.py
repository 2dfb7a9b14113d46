"""The engine of data sets: stages that hand blocks of rows on, and workers that run ahead."""
