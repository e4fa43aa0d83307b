from . import core as core
from . import engine as engine
from . import gguf as gguf
from . import graph as graph
from . import kernels as kernels
from . import kv as kv
from . import quant as quant
from . import testing as testing

__version__: str
