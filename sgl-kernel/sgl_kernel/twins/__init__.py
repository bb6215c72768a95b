"""Each op in plain torch: the reference that the C++ kernels are tested against."""

from sgl_kernel.twins.activation import *
from sgl_kernel.twins.attention import *
from sgl_kernel.twins.cache import *
from sgl_kernel.twins.eagle_tree import *
from sgl_kernel.twins.gated import *
from sgl_kernel.twins.linear import *
from sgl_kernel.twins.norm import *
from sgl_kernel.twins.rotary import *
from sgl_kernel.twins.runtime import *
from sgl_kernel.twins.slots import *
