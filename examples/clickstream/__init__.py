"""Visits of a shop: sessions that are shown early and corrected when clicks come late."""
