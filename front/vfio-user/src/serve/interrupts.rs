//! The interrupts that a client has set up.

use lunar_reactor::unix::Signal;

/// INTx. Once it was raised it is masked, until the client unmasks it.
#[derive(Default)]
enum Line {
    #[default]
    Absent,
    Unmasked(Signal),
    Masked(Signal),
}

/// The eventfds through which interrupts are raised.
#[derive(Default)]
pub(super) struct Interrupts {
    line: Line,
    /// MSI-X, by vector. It is in use if there is any.
    vectors: Vec<Option<Signal>>,
}

impl Interrupts {
    /// Raises interrupts: those of these MSI-X vectors, or INTx in their place unless the guest `masks_intx`. Returns
    /// whether all were raised: the counter of an eventfd may be full.
    pub(super) fn raise(&mut self, vectors: &[u16], masks_intx: bool) -> bool {
        if self.vectors.is_empty() {
            return masks_intx || self.raise_line();
        }
        let signals = vectors.iter().filter_map(|vector| self.vectors.get(usize::from(*vector))?.as_ref());
        // All of them, also after one that failed.
        signals.filter(|signal| !signal.ring()).count() == 0
    }

    fn raise_line(&mut self) -> bool {
        match std::mem::take(&mut self.line) {
            Line::Unmasked(signal) if signal.ring() => self.line = Line::Masked(signal),
            Line::Unmasked(signal) => {
                self.line = Line::Unmasked(signal);
                return false;
            }
            other => self.line = other,
        }
        true
    }

    /// Raises INTx whether it is masked or not, and leaves it as it is: the client tests its eventfd.
    pub(super) fn trigger_line(&self) {
        if let Line::Unmasked(signal) | Line::Masked(signal) = &self.line {
            // With a full counter the client is woken anyway.
            let _ = signal.ring();
        }
    }

    /// Raises one MSI-X vector: the client tests its eventfd.
    pub(super) fn trigger_vector(&self, vector: u32) {
        if let Some(Some(signal)) = self.vectors.get(vector as usize) {
            let _ = signal.ring();
        }
    }

    /// Sets or removes the eventfd of INTx, which is not masked then.
    pub(super) fn set_line(&mut self, signal: Option<Signal>) {
        self.line = signal.map_or(Line::Absent, Line::Unmasked);
    }

    /// Masks or unmasks INTx.
    pub(super) fn set_masked(&mut self, is_masked: bool) {
        self.line = match std::mem::take(&mut self.line) {
            Line::Absent => Line::Absent,
            Line::Unmasked(signal) | Line::Masked(signal) if is_masked => Line::Masked(signal),
            Line::Unmasked(signal) | Line::Masked(signal) => Line::Unmasked(signal),
        };
    }

    /// Sets the eventfds of the vectors from `start` to `end`; those without a signal have none any more.
    pub(super) fn set_vectors(&mut self, start: u32, end: u32, signals: impl IntoIterator<Item = Signal>) {
        let (start, end) = (start as usize, end as usize);
        if self.vectors.len() < end {
            self.vectors.resize_with(end, || None);
        }
        let mut signals = signals.into_iter();
        self.vectors[start..end].iter_mut().for_each(|vector| *vector = signals.next());
        while self.vectors.pop_if(|last| last.is_none()).is_some() {}
    }
}
