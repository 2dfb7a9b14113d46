# Made by `make goldens`.
from mspc.api.mindrecord.filereader import FileReader as FileReader
from mspc.api.mindrecord.filewriter import FileWriter as FileWriter
