"""Each op in plain torch: the definition that the C++ kernels are tested against."""

from sgl_kernel.twins.activation import *  # noqa: F403
from sgl_kernel.twins.attention import *  # noqa: F403
from sgl_kernel.twins.cache import *  # noqa: F403
from sgl_kernel.twins.gated import *  # noqa: F403
from sgl_kernel.twins.linear import *  # noqa: F403
from sgl_kernel.twins.norm import *  # noqa: F403
from sgl_kernel.twins.rotary import *  # noqa: F403
from sgl_kernel.twins.runtime import *  # noqa: F403
from sgl_kernel.twins.slots import *  # noqa: F403
from sgl_kernel.twins.tree import *  # noqa: F403
