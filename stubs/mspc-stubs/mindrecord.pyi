# Made by `make goldens`.
from mspc.api.mindrecord.converters import Cifar100ToMR as Cifar100ToMR
from mspc.api.mindrecord.converters import Cifar10ToMR as Cifar10ToMR
from mspc.api.mindrecord.converters import CsvToMR as CsvToMR
from mspc.api.mindrecord.filereader import FileReader as FileReader
from mspc.api.mindrecord.filewriter import FileWriter as FileWriter
from mspc.api.mindrecord.converters import ImageNetToMR as ImageNetToMR
from mspc.api.mindrecord.converters import MnistToMR as MnistToMR
from mspc.api.mindrecord.converters import TFRecordToMR as TFRecordToMR
from mspc.api.mindrecord.encryption import set_dec_mode as set_dec_mode
from mspc.api.mindrecord.encryption import set_enc_key as set_enc_key
from mspc.api.mindrecord.encryption import set_enc_mode as set_enc_mode
