"""Shared parts of all layouts: style, panels, saving, and the sweep that a figure draws."""

# ruff: noqa: F401
from hessfig.figures.parts.colours import (
    DASHED,
    DOTTED,
    GUIDE,
    TONES,
    matrix_colour,
    matrix_mark,
    part_colour,
    shaded,
    shades,
    tone,
)
from hessfig.figures.parts.encoding import (
    DASHES,
    WEIGHT,
    Encoding,
    ordered,
    seen,
    unseen,
    values_of,
)
from hessfig.figures.parts.figure_spec import (
    STEPS,
    FigureLayout,
    FigureSpec,
    Requires,
    Source,
)
from hessfig.figures.parts.labels import (
    are_few,
    block_words,
    norm_label,
    part_title,
    plain,
    seeds_words,
    setting_words,
    spread_words,
    symbol,
    unit_label,
    variant_words,
    weight_words,
)
from hessfig.figures.parts.lettering import SMALL, TINY, fitting, points, width_of
from hessfig.figures.parts.measured import (
    TOP_ROWS,
    MeasuredCurves,
    drawn_numbers,
    fits_of,
    read_measured,
    read_numbers,
    wanted_quantities,
    windows_in_words,
)
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import (
    APART,
    BY_COLUMN,
    ONE_SCALE,
    OWN_Y,
    SHARED,
    Page,
    Sheet,
    SheetStyle,
    height_in,
    in_rows,
    in_sheets,
    label_side,
    say,
    width_in,
)
from hessfig.figures.parts.panels import (
    colour_bar,
    corner,
    draw_curve,
    draw_interval,
    draw_matrix,
    draw_mean,
    draw_means,
    draw_seed,
    in_tens,
    mark_one,
    name_ends,
    name_sides,
    positive,
    reach,
    seed_means,
    slope_and_half,
    why_no_line,
)
from hessfig.figures.parts.rows import (
    BLOCK_KEY,
    BlockKey,
    Network,
    as_written,
    at_one_place,
    blocks_in_order,
    by_network,
    by_part,
    counted,
    different,
    in_order,
    networks_of,
    numbers_behind,
    of_network,
    parts_of,
    where,
    with_pairs,
)
from hessfig.figures.parts.saving import (
    file_words,
    page_suffix,
    panel_names,
    save_sheets,
    variant_names,
)
from hessfig.figures.parts.slope_words import (
    how,
    layer_words,
    rows_of,
    slope_words,
    window_of,
    window_words,
)
from hessfig.figures.parts.ticks import (
    between_decades,
    set_decades,
    set_x_scale,
    set_y_scale,
)
