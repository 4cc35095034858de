//! The configuration of a device's controller: enable, reset, shutdown, and the end of its client.

use super::device::Device;
use super::interrupts::Interrupts;
use super::state::{Motion, Service};
use crate::registers::NvmeRegisters;
use lunar_core::io::Fault;
use lunar_core::step::flush_now;
use lunar_nvme::Queue;
use lunar_nvme::controller::property;
use lunar_reactor::slots::contained;
use std::rc::Rc;

/// CC.EN.
pub(super) const ENABLE: u32 = 0x01;
/// CC.SHN.
const SHUTDOWN: u32 = 0xc000;

impl Device {
    /// Applies the configuration that the guest has written last, one after the other.
    pub(super) fn configure(&self) {
        if !self.configuration.begin() {
            return;
        }
        let Some(device) = self.me() else { return };
        self.core.reactor.spawn(async move {
            loop {
                let wanted = device.registers().configuration();
                if wanted == device.configuration.in_force() || device.over.has_come() {
                    break;
                }
                // Others wait for the end of this task.
                if contained(device.apply(wanted)).await.is_none() {
                    device.failed.come();
                }
                device.configuration.set_in_force(wanted);
            }
            device.configuration.end();
        });
    }

    async fn apply(&self, wanted: u32) {
        let controller = &self.admin.controller;
        let in_force = self.configuration.in_force();
        let was_enabled = in_force & ENABLE != 0;
        if wanted & ENABLE == 0 && was_enabled {
            self.stop().await;
        }
        if wanted & SHUTDOWN != 0 && in_force & SHUTDOWN == 0 {
            self.end_queues().await;
            // A failure is in the log. The next flush of a host reports it.
            let _ = self.flush_all().await;
        }
        let set = |registers: &mut NvmeRegisters| {
            if wanted & ENABLE != 0 && !was_enabled {
                registers.enable()?;
            }
            self.subsystem().set_property(controller, property::CC, false, wanted.into())
        };
        if self.with(set).is_err() {
            self.log_fault("the guest has written a configuration that the controller does not support");
            self.with(NvmeRegisters::fail);
        }
        if !self.look_for_losses() {
            self.service.set(Service::Serving);
        }
        self.wake();
    }

    /// Aborts all commands, and deletes all queues once they have ended.
    async fn stop(&self) {
        if self.service.get() == Service::Serving {
            self.service.set(Service::Ending);
        }
        let stats = self.core.reactor.stats();
        let abort = |queue: &Rc<Queue>| stats.tasks_aborted.add(queue.tasks.abort(|_| true));
        self.queues.borrow().iter().flatten().chain([&self.admin]).for_each(abort);
        self.end_queues().await;
        self.admin.tasks.until_gone(|_| true).await;
        self.with(NvmeRegisters::disable);
    }

    /// Lets go of the I/O queues when their commands have ended.
    async fn end_queues(&self) {
        let queues = self.queues.take();
        *self.queues.borrow_mut() = (0..queues.len()).map(|_| None).collect();
        for queue in queues.into_iter().flatten() {
            queue.tasks.until_left(queue.tasks.moment(), |_| true).await;
        }
    }

    /// Flushes all namespaces: what the guest has written is on the medium when the guest is off, or elsewhere.
    ///
    /// # Errors
    /// The error of the last namespace that could not be flushed.
    pub(super) async fn flush_all(&self) -> Result<(), Fault> {
        let mut all = Ok(());
        for seen in self.admin.namespaces() {
            match flush_now(&seen.namespace.unit).await {
                Ok(()) | Err(Fault::Unsupported) => {}
                Err(why) => {
                    self.log_fault(&format!("namespace {} could not be flushed: {why:?}", seen.id));
                    all = Err(why);
                }
            }
        }
        all
    }

    /// Resets the device. It runs afterwards.
    pub(super) async fn reset(&self) {
        self.clear().await;
        self.motion.replace(Motion::Running);
        self.run();
    }

    /// Resets everything but guest memory, interrupts, and whether the device runs.
    pub(super) async fn clear(&self) {
        self.with(|registers| _ = registers.write(property::CC, &[0; 4]));
        self.configure();
        self.configuration.until_idle().await;
        self.with(NvmeRegisters::reset);
        self.configuration_space.borrow_mut().reset();
    }

    /// Ends the device when its client has disconnected: commands end, and guest memory is not touched any more.
    pub(super) async fn end(&self) {
        self.reset().await;
        self.over.come();
        self.admin.controller.end();
        self.with(|registers| drop(registers.forget_memory()));
        *self.interrupts.borrow_mut() = Interrupts::default();
    }
}
