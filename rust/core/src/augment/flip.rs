//! Flips: left to right, and upside down.

use super::canvas::Canvas;

/// Mirrors left to right.
pub(super) fn horizontal(canvas: &mut Canvas) {
    let pitch = 3 * canvas.size().0.max(1);
    canvas.replace(|from, to| {
        for (from, to) in from.chunks_exact(pitch).zip(to.chunks_exact_mut(pitch)) {
            for (from, to) in from.rchunks_exact(3).zip(to.chunks_exact_mut(3)) {
                to.copy_from_slice(from);
            }
        }
    });
}

/// Mirrors upside down.
pub(super) fn vertical(canvas: &mut Canvas) {
    let pitch = 3 * canvas.size().0.max(1);
    canvas.replace(|from, to| {
        for (from, to) in from.rchunks_exact(pitch).zip(to.chunks_exact_mut(pitch)) {
            to.copy_from_slice(from);
        }
    });
}
