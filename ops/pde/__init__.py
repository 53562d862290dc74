"""Partial differential equations by the method of lines, on uniform grids.

An operator takes values on a `Grid` and returns values on it, so that an equation becomes a vector field of `ops.ode.solve`:

    grid = Grid((0.0, 1.0), 100, points="cells")
    solve(lambda t, u, k: k * laplacian(u, grid, Neumann(0.0), order=4), u0, k, t1=1.0)

- `differences`: finite differences of order 2, 4 or 6 at the points, up to the boundary: `derivative`, `second_derivative`,
  `gradient`, `divergence`, `laplacian`.
- `volumes`: fluxes between cells, conservative to rounding: `advect` with a limiter, `diffuse` with a variable coefficient.
- `spectral`: the derivatives of the trigonometric interpolant on periodic grids: `spectral_derivative`, `spectral_laplacian`,
  `dealias`.

The grid's axes are the last axes of an array; axes before them are components or batches, each treated alike. The values of boundary
conditions are ordinary arrays: make the condition inside the vector field, and it may depend on time, parameters and the state. All
operators are pure, go through `jit`, `vmap` and both modes of differentiation, and keep the dtype of the array.
"""

from ops.pde.boundary import Dirichlet as Dirichlet
from ops.pde.boundary import Free as Free
from ops.pde.boundary import Neumann as Neumann
from ops.pde.boundary import Robin as Robin
from ops.pde.differences import derivative as derivative
from ops.pde.differences import divergence as divergence
from ops.pde.differences import gradient as gradient
from ops.pde.differences import impose as impose
from ops.pde.differences import laplacian as laplacian
from ops.pde.differences import second_derivative as second_derivative
from ops.pde.grid import Grid as Grid
from ops.pde.spectral import dealias as dealias
from ops.pde.spectral import spectral_derivative as spectral_derivative
from ops.pde.spectral import spectral_laplacian as spectral_laplacian
from ops.pde.volumes import LIMITERS as LIMITERS
from ops.pde.volumes import advect as advect
from ops.pde.volumes import diffuse as diffuse
